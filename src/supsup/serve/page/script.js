// The page of a served model. Everything from the server is inserted as text, never as markup.
const $ = id => document.getElementById(id);
const NS = "http://www.w3.org/2000/svg";
const IMAGE = /\.(png|jpe?g|webp|gif|bmp|tiff?|ppm|pgm)$/i;
const PAGE = 50;
const number = new Intl.NumberFormat("en");
let server = { tasks: 0, image_shape: null, needs_token: false, read_only: false };

// Requests.

async function request(path, options = {}) {
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("The server does not respond. Is it still running?");
  }
  const content = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(content.error || `The server returned status ${response.status}.`);
  return content;
}

const change = (path, options) =>
  request(path, { ...options, headers: server.needs_token ? { Authorization: `Bearer ${$("token").value}` } : {} });
const taskPath = name => `/tasks/${encodeURIComponent(name)}`;
const plural = (count, one) => `${number.format(count)} ${one}${count === 1 ? "" : one.endsWith("s") ? "es" : "s"}`;

async function refreshSummary() {
  server = await request("/health");
  $("summary").textContent = `${server.model} · ${plural(server.tasks, "task")}${server.read_only ? " · read-only" : ""}`;
  $("token-field").hidden = !server.needs_token || server.read_only;
  $("learn-card").hidden = server.read_only;
}

// Predictions.

let latest = 0, plotted = null;

async function predict(blob) {
  const turn = ++latest;
  const form = new FormData();
  form.append("image", blob, blob.name || "drawing.png");
  form.append("scores", "1");
  const known = $("known").value.trim();
  if (known) form.append("task", known);
  const url = URL.createObjectURL(blob);
  try {
    const begin = performance.now();
    const prediction = await request("/predict", { method: "POST", body: form });
    if (turn === latest) show(prediction, known, url, performance.now() - begin);
  } catch (error) {
    if (turn === latest) fail(error.message);
  } finally {
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  }
}

function fail(message) {
  $("problem").textContent = message;
  $("problem").hidden = false;
  $("waiting").hidden = $("found").hidden = true;
}

function show(prediction, known, url, milliseconds) {
  const answer = prediction.answers[0];
  $("sent").src = url;
  $("label").textContent = answer.name;
  const confidence = answer.task_confidence == null ? "" : `, confidence ${percent(answer.task_confidence)}`;
  $("task").textContent = known
    ? `task: ${answer.task} (given)`
    : prediction.among === 1
      ? `task: ${answer.task} (the only one)`
      : `task: ${answer.task} (inferred from ${plural(prediction.among, "task")}${confidence})`;
  $("confidence").value = answer.confidence ?? 0;
  $("percent").textContent = answer.confidence == null ? "unknown" : percent(answer.confidence);
  $("time").textContent = `${prediction.milliseconds.toFixed(1)} ms in the server, ${milliseconds.toFixed(1)} ms round trip`;
  $("problem").hidden = $("waiting").hidden = true;
  $("found").hidden = false;
  plotted = answer.scores && prediction.among > 1 ? [answer.scores, prediction.among] : null;
  $("plot-figure").hidden = !plotted;
  if (plotted) plot(...plotted);
}

const tenths = value => (Math.round(10 * value) / 10 || 0).toFixed(1);
const percent = share => `${(100 * share).toFixed(1)} %`;

function element(kind, attributes, text) {
  const made = document.createElementNS(NS, kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function plot(scores, among) {
  const wide = Math.max(200, $("plot").clientWidth), tall = 180;
  const [left, right, top, bottom] = [8, wide - 8, 32, tall - 8];
  $("plot").setAttribute("viewBox", `0 0 ${wide} ${tall}`);
  const values = scores.values;
  const [name, height] = scores.best[0];
  const low = Math.min(0, ...values), high = Math.max(1, ...values);
  const x = index => values.length === 1 ? (left + right) / 2 : left + (right - left) * index / (values.length - 1);
  const y = value => bottom - (bottom - top) * (value - low) / (high - low || 1);
  const best = values.indexOf(Math.max(...values));
  const parts = [element("line", { class: "axis", x1: left, x2: right, y1: y(0), y2: y(0) })];
  const order = [...values.keys()].filter(index => index !== best).concat(best);
  for (const index of order) {
    const kind = index === best ? { class: "best" } : {};
    parts.push(element("line", { ...kind, x1: x(index), x2: x(index), y1: y(0), y2: y(values[index]) }));
    if (values.length <= 150 || index === best)
      parts.push(element("circle", { ...kind, cx: x(index), cy: y(values[index]), r: index === best ? 6 : 3 }));
  }
  const anchor = x(best) < wide / 3 ? "start" : x(best) > wide * 2 / 3 ? "end" : "middle";
  const short = name.length > 32 ? `${name.slice(0, 31)}…` : name;
  parts.push(element("text", { class: "best", x: x(best), y: y(values[best]) - 13, "text-anchor": anchor }, short));
  $("plot").replaceChildren(...parts);
  const next = scores.best.length > 1 ? `, then ${scores.best[1][0]} with ${tenths(scores.best[1][1])}` : "";
  const caption = `Scores of the ${number.format(among)} tasks, in standard deviations from their mean: ${name} with ${tenths(height)}${next}.`;
  const grouped = scores.each > 1 ? ` Each line is the best of ${scores.each} neighbouring tasks.` : "";
  $("plot").setAttribute("aria-label", caption);
  $("plot-caption").textContent = caption + grouped;
}

window.addEventListener("resize", () => plotted && plot(...plotted));

// Drawing. Ink is cropped and placed as in MNIST: 20 of 28 pixels high, centred by its mass.

const canvas = $("canvas"), pen = canvas.getContext("2d", { willReadFrequently: true });
let at = null, later = 0;

function clearCanvas() {
  $("hint").hidden = false;
  clearTimeout(later);
  pen.fillStyle = $("dark-ink").checked ? "#fff" : "#000";
  pen.fillRect(0, 0, canvas.width, canvas.height);
}

const place = event => {
  const box = canvas.getBoundingClientRect();
  return [(event.clientX - box.left) * canvas.width / box.width, (event.clientY - box.top) * canvas.height / box.height];
};

function stroke(event) {
  if (!at) return;
  const to = place(event);
  pen.strokeStyle = $("dark-ink").checked ? "#000" : "#fff";
  pen.lineWidth = canvas.width / 14;
  pen.lineCap = pen.lineJoin = "round";
  pen.beginPath();
  pen.moveTo(...at);
  pen.lineTo(...to);
  pen.stroke();
  at = to;
}

canvas.addEventListener("pointerdown", event => {
  canvas.setPointerCapture(event.pointerId);
  clearTimeout(later);
  $("hint").hidden = true;
  at = place(event);
  stroke(event);
});
canvas.addEventListener("pointermove", stroke);
for (const kind of ["pointerup", "pointercancel"])
  canvas.addEventListener(kind, () => {
    at = null;
    later = setTimeout(sendDrawing, 350);
  });
$("clear").addEventListener("click", clearCanvas);
$("dark-ink").addEventListener("change", clearCanvas);

function sides() {
  const shape = server.image_shape;
  if (!shape) return [28, 28];
  if (shape.length > 1) return shape.slice(-2);
  const grey = Math.sqrt(shape[0]), side = Number.isInteger(grey) ? grey : Math.round(Math.sqrt(shape[0] / 3));
  return [side, side];
}

function sendDrawing() {
  const [rows, columns] = sides(), paper = $("dark-ink").checked ? 255 : 0;
  const { data, width, height } = pen.getImageData(0, 0, canvas.width, canvas.height);
  let [left, right, top, bottom, mass, sumX, sumY] = [width, -1, height, -1, 0, 0, 0];
  for (let row = 0; row < height; row++)
    for (let column = 0; column < width; column++) {
      const ink = Math.abs(data[4 * (row * width + column)] - paper);
      if (ink < 32) continue;
      left = Math.min(left, column), right = Math.max(right, column);
      top = Math.min(top, row), bottom = Math.max(bottom, row);
      mass += ink, sumX += ink * (column + .5), sumY += ink * (row + .5);
    }
  if (!mass) return;
  const scale = Math.min(columns, rows) * 20 / 28 / Math.max(right - left + 1, bottom - top + 1);
  const small = new OffscreenCanvas(columns, rows), brush = small.getContext("2d");
  brush.fillStyle = paper ? "#fff" : "#000";
  brush.fillRect(0, 0, columns, rows);
  brush.imageSmoothingQuality = "high";
  brush.drawImage(
    canvas, left, top, right - left + 1, bottom - top + 1,
    columns / 2 - (sumX / mass - left) * scale, rows / 2 - (sumY / mass - top) * scale,
    (right - left + 1) * scale, (bottom - top + 1) * scale,
  );
  small.convertToBlob({ type: "image/png" }).then(predict);
}

// Dropped, chosen and pasted files.

function acceptDrops(zone, accept) {
  zone.addEventListener("dragover", event => { event.preventDefault(); zone.classList.add("over") });
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", event => {
    event.preventDefault();
    zone.classList.remove("over");
    accept(event.dataTransfer);
  });
}

for (const kind of ["dragover", "drop"]) window.addEventListener(kind, event => event.preventDefault());
acceptDrops($("drop"), transfer => transfer.files.length && predict(transfer.files[0]));
$("file").addEventListener("change", () => {
  if ($("file").files.length) predict($("file").files[0]);
  $("file").value = "";
});
window.addEventListener("paste", event => {
  const file = [...event.clipboardData.files].find(each => each.type.startsWith("image/"));
  if (file) predict(file);
});

// The list of tasks.

let listed = 0, searching = 0, wanted = "";

async function listTasks(again = true) {
  if (again) [listed, wanted] = [0, $("search").value];
  const turn = ++searching;
  const page = await request(`/tasks?search=${encodeURIComponent(wanted)}&offset=${listed}&limit=${PAGE}`);
  if (turn !== searching) return;
  if (again) $("tasks").replaceChildren();
  $("tasks").append(...page.tasks.map(row));
  listed += page.tasks.length;
  $("more").hidden = listed >= page.matching;
  $("count").textContent = wanted
    ? `${number.format(page.matching)} of ${plural(page.total, "task")} match`
    : page.total ? plural(page.total, "task") : "No tasks yet.";
  if (!wanted) $("names").replaceChildren(...page.tasks.map(task => new Option(task.name)));
}

function html(kind, properties, ...children) {
  const made = Object.assign(document.createElement(kind), properties);
  made.append(...children);
  return made;
}

function row(task) {
  const inside = html("div", { className: "details" });
  const classes = html("span", { className: "quiet", textContent: plural(task.classes, "class") });
  const details = html("details", {}, html("summary", {}, task.name, classes), inside);
  details.addEventListener("toggle", () => details.open && !inside.hasChildNodes() && fill(inside, task.name));
  return html("li", {}, details);
}

async function fill(inside, name) {
  try {
    const task = await request(taskPath(name));
    const when = new Date(task.learned_at);
    const parts = [
      html("span", { textContent: `Classes: ${task.class_names.slice(0, 30).join(", ")}${task.class_names.length > 30 ? ", …" : ""}` }),
      html("span", { className: "quiet", textContent: `Learned ${isNaN(when) ? task.learned_at : when.toLocaleString()} · ${plural(task.bytes, "byte")}` }),
    ];
    if (task.examples.length)
      parts.push(html("span", { className: "examples" }, ...task.examples.map(example)));
    if (!server.read_only) {
      const button = html("button", { type: "button", className: "danger", textContent: "Forget" });
      button.setAttribute("aria-label", `Forget ${name}`);
      button.addEventListener("click", () => forget(name));
      parts.push(button);
    }
    inside.replaceChildren(...parts);
  } catch (error) {
    inside.textContent = error.message;
  }
}

function example(src) {
  const button = html("button", { type: "button", title: "Try this image" }, html("img", { src, alt: "" }));
  button.setAttribute("aria-label", "Try this example of the task");
  button.addEventListener("click", () => {
    const bytes = Uint8Array.from(atob(src.split(",")[1]), letter => letter.charCodeAt(0));
    predict(new File([bytes], "example.png", { type: "image/png" }));
    $("answer").scrollIntoView({ block: "nearest" });
  });
  return button;
}

function forget(name) {
  $("sure-text").textContent = `“${name}” will be permanently deleted, also from the file. Other tasks are not affected.`;
  $("sure").returnValue = "no";
  $("sure").onclose = async () => {
    if ($("sure").returnValue !== "yes") return;
    try {
      follow(await change(taskPath(name), { method: "DELETE" }));
    } catch (error) {
      note(error.message);
    }
  };
  $("sure").showModal();
}

let typing = 0;
$("search").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => listTasks().catch(error => { $("count").textContent = error.message }), 150);
});
$("more").addEventListener("click", () => listTasks(false));

// Learning from a folder with a subfolder for each class.

let images = []; // [path, file]

async function walk(entry, path = "") {
  if (entry.isFile) {
    const file = await new Promise((good, bad) => entry.file(good, bad));
    return [[path + entry.name, file]];
  }
  const reader = entry.createReader(), found = [];
  for (;;) {
    const some = await new Promise((good, bad) => reader.readEntries(good, bad));
    if (!some.length) return found;
    for (const each of some) found.push(...await walk(each, `${path}${entry.name}/`));
  }
}

function choose(files) {
  images = files.filter(([path]) => IMAGE.test(path) && path.split("/").length > 1 && !path.split("/").pop().startsWith("."));
  const classes = new Set(images.map(([path]) => path.split("/").at(-2)));
  const names = [...classes].sort();
  $("chosen").textContent = classes.size > 1
    ? `${plural(images.length, "image")} in ${plural(classes.size, "class")}: ${names.slice(0, 8).join(", ")}${names.length > 8 ? ", …" : ""}`
    : "Choose a folder with at least two subfolders of images, one for each class.";
  $("start").disabled = classes.size < 2;
  if (images.length && !$("name").value) $("name").value = images[0][0].split("/")[0];
}

acceptDrops($("folder-drop"), async transfer => {
  const entries = [...transfer.items].map(item => item.webkitGetAsEntry?.()).filter(Boolean);
  choose((await Promise.all(entries.map(entry => walk(entry)))).flat());
});
$("folder").addEventListener("change", () => choose([...$("folder").files].map(file => [file.webkitRelativePath || file.name, file])));

$("learn").addEventListener("submit", async event => {
  event.preventDefault();
  const name = $("name").value, form = new FormData();
  for (const [path, file] of images) form.append("images", file, path);
  $("start").disabled = true;
  $("chosen").textContent = `Uploading ${plural(images.length, "image")} …`;
  try {
    follow(await change(taskPath(name), { method: "POST", body: form }));
    images = [];
    $("chosen").textContent = $("name").value = $("folder").value = "";
  } catch (error) {
    $("chosen").textContent = error.message;
    $("start").disabled = false;
  }
});

// Jobs.

const WORDS = {
  learn: { waiting: "is queued", running: "is being learned", done: "was learned", failed: "was not learned", stopped: "was not learned" },
  forget: { waiting: "is queued", running: "is being forgotten", done: "was forgotten", failed: "was not forgotten", stopped: "was not forgotten" },
};
const followed = new Set();

function note(text) {
  $("jobs").prepend(html("li", { className: "problem", textContent: text }));
}

async function follow(job) {
  if (followed.has(job.id)) return;
  followed.add(job.id);
  const text = html("span"), bar = html("progress", { max: 1 });
  bar.setAttribute("aria-label", `Progress of ${job.task}`);
  $("jobs").prepend(html("li", {}, text, bar));
  for (;;) {
    const over = !["waiting", "running"].includes(job.state);
    text.textContent = `“${job.task}” ${WORDS[job.kind][job.state]}${job.error ? `: ${job.error}` : over ? ` (${job.seconds.toFixed(1)} s)` : " …"}`;
    text.className = job.error ? "problem" : "";
    if (job.progress > 0) bar.value = job.progress;
    if (over) break;
    await new Promise(wake => setTimeout(wake, 250));
    try {
      job = await request(`/jobs/${job.id}`);
    } catch (error) {
      job = { ...job, state: "stopped", error: error.message };
    }
  }
  bar.remove();
  followed.delete(job.id);
  await Promise.all([refreshSummary(), listTasks()]).catch(error => note(error.message));
}

clearCanvas();
Promise.all([refreshSummary(), listTasks()])
  .then(() => server.jobs.forEach(follow))
  .catch(error => fail(error.message));

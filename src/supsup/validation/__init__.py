"""Values that a user gives: each is checked, named in the error if it is wrong, and made plain if it is right."""

from supsup.validation.tensors import plain_tensor as plain_tensor
from supsup.validation.values import Check as Check
from supsup.validation.values import check_fields as check_fields
from supsup.validation.values import choice as choice
from supsup.validation.values import flag as flag
from supsup.validation.values import given as given
from supsup.validation.values import listed as listed
from supsup.validation.values import names as names
from supsup.validation.values import optional as optional
from supsup.validation.values import path as path
from supsup.validation.values import real as real
from supsup.validation.values import shown as shown
from supsup.validation.values import text as text
from supsup.validation.values import whole as whole

#!/bin/sh
# named_parameters.sh PROGRAM...: fails if a test prints its parameter as bytes ("56-byte object <..>"), since people
# read the names of tests that fail. A type without a text of its own gets a PrintTo beside its definition.
bad=0
for program in "$@"; do
  if "$program" --gtest_list_tests | grep -H --label="$program" 'GetParam() = .*-byte object <'; then bad=1; fi
done
exit $bad

#!/bin/sh
# named_parameters.sh PROGRAM...: no test of these prints its parameter as bytes ("56-byte object <..>"): what fails is
# read by people. A type that has no text of its own gets a PrintTo beside its definition.
bad=0
for program in "$@"; do
  if "$program" --gtest_list_tests | grep -H --label="$program" 'GetParam() = .*-byte object <'; then bad=1; fi
done
exit $bad

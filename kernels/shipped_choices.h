#pragma once
// ChoiceMap that the program carries, measured on one device of each model (kernels/choices/*.yaml), so that any two
// machines with the same model and libraries agree on the shapes there without measuring.

#include "kernels/choice_file.h"

namespace ring {

const ChoiceMap& shipped_choices();

}  // namespace ring

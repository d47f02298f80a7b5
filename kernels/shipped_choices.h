#pragma once
// Choices compiled into the program, measured on one device of each model (kernels/choices/*.yaml). With them, any two
// machines with the same device model and libraries agree on the shapes in the tables without measuring.

#include "kernels/choice_file.h"

namespace ring {

// Returns the choices of all tables.
const ChoiceMap& shipped_choices();

}  // namespace ring

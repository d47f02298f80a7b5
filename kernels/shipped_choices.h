#pragma once
// Choices compiled into the program, measured on one device of each model (kernels/choices/*.yaml). For the shapes in
// these tables, machines with the same device model and libraries agree on the choice without measuring.

#include "kernels/choice_file.h"

namespace ring {

// Returns the choices of all tables.
const ChoiceMap& shipped_choices();

}  // namespace ring

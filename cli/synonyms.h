#pragma once
// What other programs call our settings.

#include "core/fields.h"

namespace ring {

const config::Synonyms* words_of_other_programs();

}  // namespace ring

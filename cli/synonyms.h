#pragma once
// Names that other programs use for our settings.

#include "core/fields.h"

namespace ring {

const config::Synonyms* words_of_other_programs();

}  // namespace ring

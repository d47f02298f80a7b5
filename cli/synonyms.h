#pragma once
// Names that other programs use for our settings.

#include "core/fields.h"

namespace ring {

const config::Synonyms* config_aliases();

}  // namespace ring

#pragma once
// Messages for file system errors.

#include <string>

namespace ring {

// Returns the system's message for an errno, and a remedy if one is known: "No space left on device. Free space ...".
std::string io_error_text(int error);

}  // namespace ring

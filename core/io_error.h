#pragma once
// Texts of errors of the file system.

#include <string>

namespace ring {

// Returns the system's text for an errno, and what to do if that is known: "No space left on device. Free space ...".
std::string io_error_text(int error);

}  // namespace ring

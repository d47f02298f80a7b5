#pragma once

namespace ring {

// Style sheet and script of a report. Neither contains characters that XML or HTML would require to be escaped.
extern const char *const kReportStyle, *const kReportScript;

}  // namespace ring

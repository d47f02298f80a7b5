#pragma once

namespace ring {

// Style sheet and script of a report. Neither has a character that XML or HTML would have to be escaped.
extern const char *const kReportStyle, *const kReportScript;

}  // namespace ring

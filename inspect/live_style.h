#pragma once

namespace ring {

// Style sheet and script that a live page needs in addition to kReportStyle and kReportScript. Neither contains a
// character that XML or HTML would require to be escaped.
extern const char *const kLiveStyle, *const kLiveScript;

}  // namespace ring

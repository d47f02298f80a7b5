#pragma once

namespace ring {

// What a live page has beside kReportStyle and kReportScript. Neither has a character that XML or HTML would have to be
// escaped.
extern const char *const kLiveStyle, *const kLiveScript;

}  // namespace ring

#pragma once

namespace ring {

// Style sheet and script that a live page needs beside kReportStyle and kReportScript. Neither contains characters that
// XML or HTML would require to be escaped.
extern const char *const kLiveStyle, *const kLiveScript;

}  // namespace ring

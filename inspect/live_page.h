#pragma once
// The page of `launch --dashboard`: the job's state above the report of its run. A script updates both.

#include <string>

#include "inspect/live_run.h"
#include "job/job_board.h"

namespace ring {

std::string live_page(const std::string& title);
// Returns the reply to the script, which polls every two seconds, or every ten while the page is hidden: {"job":
// markup, "version": N, "run": markup}. Omits "run" if the script already has this version (`known_version`), or if
// `run` is null because the command trains no run.
std::string live_json(const JobView&, const LiveReading* run, std::int64_t known_version);

}  // namespace ring

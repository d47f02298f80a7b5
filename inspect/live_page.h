#pragma once
// The page of `launch --dashboard`: what the job does now, above the report of its run, both followed by a script.

#include <string>

#include "inspect/live_run.h"
#include "job/job_board.h"

namespace ring {

std::string live_page(const std::string& title);
// What the script asks for every two seconds: {"job": markup, "version": N, "run": markup}, without "run" where `known`
// is the version that there is. run: null: the command has none.
std::string live_json(const JobView&, const LiveReading* run, std::int64_t known);

}  // namespace ring

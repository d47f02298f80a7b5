#pragma once
// State of a worker as a dashboard shows it.

#include "job/job_board.h"
#include "launcher/worker.h"

namespace ring {

// gpu: PCI address of the worker's GPU; empty if there is no GPU or its address is unknown.
RankView view_of(const Worker&, const std::string& gpu);

}  // namespace ring

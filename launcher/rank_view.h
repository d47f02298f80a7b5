#pragma once
// What a dashboard shows of a worker.

#include "job/job_board.h"
#include "launcher/worker.h"

namespace ring {

// gpu: its PCI address; empty: it has none, or which one is not known.
RankView view_of(const Worker&, const std::string& gpu);

}  // namespace ring

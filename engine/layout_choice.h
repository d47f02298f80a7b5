#pragma once
// Chooses the layout that `parallel: auto` leaves open, as `ringmaster plan` would for the processes of this run.

#include "comm/mesh/mesh.h"
#include "engine/config.h"
#include "engine/planner.h"

namespace ring {

// Returns the degrees that the settings fix: all except those that are `auto` or were chosen before.
FixedDegrees given_degrees(const ParallelConfig&);

// Replaces the open degrees by the degrees of the fastest layout that is predicted to fit, lists them in
// parallel.chosen, and gives the mesh the groups of that layout. train.micro_batch: 0 becomes auto, because the best
// micro-batch depends on the layout. Does nothing if the layout is not open (ParallelConfig::is_open). Rank 0 plans for
// all ranks, with the smallest memory of all, and logs its choice. If the run's directory exists, `fresh` is false, and
// the run's layout has as many processes as this job and the given degrees, keeps that layout. If `auto` chose the
// run's optimizer.offload, it is chosen again together with the layout. If no layout fits, throws WorldSizeError on all
// ranks and sets own_status().misfit, so that the launcher may try a different number of processes. Collective.
void choose_layout(Config&, Mesh&, bool fresh);

}  // namespace ring

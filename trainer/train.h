#pragma once
// The training loop of a run: start or resume, log, evaluate, save, stop.

#include <string>

#include "comm/mesh/mesh.h"
#include "engine/config.h"
#include "trainer/train_end.h"
#include "trainer/train_options.h"

namespace ring {

class StopSignal;

// Error: settings differ from the run's (keys named), data or device problems, a loss that is not finite (after naming
// the step, the samples and the first tensor that is not finite).
TrainEnd train(Config, const TrainOptions&, Mesh&, StopSignal&);

}  // namespace ring

#pragma once
// The training loop of a run: start or resume, log, evaluate, save, stop.

#include <string>

#include "comm/mesh/mesh.h"
#include "engine/config.h"
#include "trainer/train_end.h"
#include "trainer/train_options.h"

namespace ring {

class StopSignal;

// Trains until the run ends. Throws Error if settings differ from those of the run (the message names the keys), for
// problems with data or devices, and if a loss is not finite (the message names the step, the samples and the first
// tensor that is not finite).
TrainEnd train(Config, const TrainOptions&, Mesh&, StopSignal&);

}  // namespace ring

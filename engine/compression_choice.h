#pragma once
#include "comm/mesh/mesh.h"
#include "engine/config.h"

namespace ring {

// Replaces parallel.compress: auto by int8 or none, and adds "compress" to parallel.chosen, the list of settings that
// auto chose. If the ranks that share the data are on one node, chooses none. Otherwise measures the whole time of a
// sum of gradients in both forms (encoding, messages, decoding, adding), and chooses int8 if it is faster. A resumed
// run keeps its choice unless `fresh` is true, so that its results stay bit-identical. Rank 0 logs the choice and the
// reason. Collective; all ranks choose the same.
//
// There is one choice for all tensors, because both times grow in proportion to a tensor's size, and all tensors of a
// bucket are sent in one message. Vectors are never compressed (parallel/compressed_sum.h).
void choose_compression(Config&, Mesh&, bool fresh);

}  // namespace ring

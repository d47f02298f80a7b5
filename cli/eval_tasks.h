#pragma once
// `ringmaster eval --task`: evaluates a model on tasks.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace ring {

struct Session;

// Reads all tasks, then evaluates them. context: maximum tokens of a question; 0 means the model's context. rows: see
// sequences_per_batch(). Prints a table unless `quiet`; returns the results as JSON.
nlohmann::ordered_json evaluate_tasks(const Session&, const std::vector<std::string>& specs, std::int64_t context,
                                      std::int64_t rows, bool quiet);

}  // namespace ring

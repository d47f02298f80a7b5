#pragma once
// `ringmaster eval --task`: evaluates a model on tasks.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace ring {

struct Session;

// Evaluates the tasks, after reading all of them. context: maximum tokens of a question, 0 for the model's context;
// rows: see batch_rows(). Prints a table unless `quiet`; returns the results as JSON.
nlohmann::ordered_json evaluate_tasks(const Session&, const std::vector<std::string>& specs, std::int64_t context,
                                      std::int64_t rows, bool quiet);

}  // namespace ring

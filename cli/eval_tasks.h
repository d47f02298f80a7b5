#pragma once
// `ringmaster eval --task`.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace ring {

struct Session;

// Reads every task before it computes the first. context: tokens that count of a question, 0: the model's; rows: see
// batch_rows(). Prints a table unless `quiet`; returns the same as JSON.
nlohmann::ordered_json evaluate_tasks(const Session&, const std::vector<std::string>& specs, std::int64_t context,
                                      std::int64_t rows, bool quiet);

}  // namespace ring

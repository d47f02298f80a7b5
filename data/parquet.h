#pragma once
// Reader of Parquet tables, if the build includes Arrow.

#include <string>
#include <string_view>

#include "data/records.h"

namespace ring {

bool begins_parquet(std::string_view head);
void require_parquet(const std::string& path);  // throws Error if this build lacks Arrow

// Passes each row to `take` as a record with the columns that `members` names, plus `tools` for conversations. Holds
// the compressed pages of these columns and 256 rows in memory, whatever the row group size. Throws the error of
// require_parquet(), and Error if the table cannot be read. Errors of take() name the path and the row, counted from 1.
void read_parquet(const std::string& path, const RecordMembers& members, const TakeRecord& take);

}  // namespace ring

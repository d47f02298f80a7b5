#pragma once
// Parquet tables, read through Arrow's libraries where the program was built with them.

#include <string>
#include <string_view>

#include "data/records.h"

namespace ring {

bool begins_parquet(std::string_view head);
void need_parquet(const std::string& path);  // Error: this build lacks Arrow

// Gives `take` each row as a record of the columns that `members` names, and of `tools` with conversations. Memory: the
// compressed pages of those columns and 256 rows, whatever the size of a row group. Error: need_parquet()'s, the
// table cannot be read, or take()'s, with path and row, counted from 1.
void read_parquet(const std::string& path, const RecordMembers& members, const TakeRecord& take);

}  // namespace ring

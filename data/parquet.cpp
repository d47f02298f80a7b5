#include "data/parquet.h"

#include "core/check.h"

#ifdef RING_WITH_PARQUET
#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>
#include <vector>

#include "data/chat_forms.h"
#include "text/chat/marks.h"
#include "text/utf8.h"
#endif

namespace ring {

bool begins_parquet(std::string_view head) { return head.starts_with("PAR1"); }

#ifndef RING_WITH_PARQUET

void require_parquet(const std::string& path) {
  fail(path, " is a Parquet table, which this build cannot read: run scripts/arrow.sh, or install Apache's ",
       "libparquet-dev, and build again; or write its rows as JSON Lines first");
}

void read_parquet(const std::string& path, const RecordMembers&, const TakeRecord&) { require_parquet(path); }

#else

namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::int64_t kRows = 256;               // number of rows decoded at a time
constexpr std::int64_t kReadAhead = 1024 * 1024;  // in bytes per column

void check(const arrow::Status& status, const std::string& path) {
  if (!status.ok())
    fail(path, " cannot be read as a Parquet table: ", status.message(), "; copy it again from its source");
}

template <class T>
T checked(arrow::Result<T> result, const std::string& path) {
  check(result.status(), path);
  return std::move(result).ValueUnsafe();
}

template <class Array>
const Array& as(const arrow::Array& array) {
  return static_cast<const Array&>(array);  // the caller has checked type_id()
}

OrderedJson value_at(const arrow::Array& array, std::int64_t row);

OrderedJson list_of(const arrow::Array& values, std::int64_t begin, std::int64_t end) {
  OrderedJson list = OrderedJson::array();
  for (std::int64_t i = begin; i < end; ++i) list.push_back(value_at(values, i));
  return list;
}

// Converts a struct to a JSON object without the fields that are null. In a table every row has the keys of all rows,
// so a null means that this row lacks the key.
OrderedJson object_of(const arrow::StructArray& structs, std::int64_t row) {
  OrderedJson object = OrderedJson::object();
  for (int i = 0; i < structs.num_fields(); ++i)
    if (!structs.field(i)->IsNull(row))
      object[structs.struct_type()->field(i)->name()] = value_at(*structs.field(i), row);
  return object;
}

template <class Array>
OrderedJson list_at(const arrow::Array& array, std::int64_t row) {
  const Array& lists = as<Array>(array);
  const std::int64_t begin = lists.value_offset(row);
  return list_of(*lists.values(), begin, begin + lists.value_length(row));
}

template <class Array>
OrderedJson text_at(const arrow::Array& array, std::int64_t row) {
  const std::string_view text = as<Array>(array).GetView(row);
  if (utf8::valid_prefix_length(text) != text.size()) return OrderedJson::binary({});
  return std::string(text);
}

// Converts a value to the JSON that JSON Lines would contain. A type without a JSON form, such as a date, becomes a
// "binary" value, which is rejected wherever text is expected.
OrderedJson value_at(const arrow::Array& array, std::int64_t row) {
  if (array.IsNull(row)) return nullptr;
  switch (array.type_id()) {
    case arrow::Type::BOOL: return as<arrow::BooleanArray>(array).Value(row);
    case arrow::Type::INT8: return as<arrow::Int8Array>(array).Value(row);
    case arrow::Type::INT16: return as<arrow::Int16Array>(array).Value(row);
    case arrow::Type::INT32: return as<arrow::Int32Array>(array).Value(row);
    case arrow::Type::INT64: return as<arrow::Int64Array>(array).Value(row);
    case arrow::Type::UINT8: return as<arrow::UInt8Array>(array).Value(row);
    case arrow::Type::UINT16: return as<arrow::UInt16Array>(array).Value(row);
    case arrow::Type::UINT32: return as<arrow::UInt32Array>(array).Value(row);
    case arrow::Type::UINT64: return as<arrow::UInt64Array>(array).Value(row);
    case arrow::Type::FLOAT: return as<arrow::FloatArray>(array).Value(row);
    case arrow::Type::DOUBLE: return as<arrow::DoubleArray>(array).Value(row);
    case arrow::Type::STRING: return text_at<arrow::StringArray>(array, row);
    case arrow::Type::LARGE_STRING: return text_at<arrow::LargeStringArray>(array, row);
    case arrow::Type::BINARY: return text_at<arrow::BinaryArray>(array, row);
    case arrow::Type::LARGE_BINARY: return text_at<arrow::LargeBinaryArray>(array, row);
    case arrow::Type::LIST: return list_at<arrow::ListArray>(array, row);
    case arrow::Type::LARGE_LIST: return list_at<arrow::LargeListArray>(array, row);
    case arrow::Type::FIXED_SIZE_LIST: return list_at<arrow::FixedSizeListArray>(array, row);
    case arrow::Type::STRUCT: return object_of(as<arrow::StructArray>(array), row);
    case arrow::Type::DICTIONARY: {
      const auto& dictionary = as<arrow::DictionaryArray>(array);
      return value_at(*dictionary.dictionary(), dictionary.GetValueIndex(row));
    }
    default: return OrderedJson::binary({});
  }
}

// Returns true if a top-level column holds the member: it has the member's name, or the part before a dot in that name.
bool names(const std::string& member, const std::string& column) {
  return member == column || (member.starts_with(column) && member[column.size()] == '.');
}

// Returns the leaf columns to read. If a wanted column is missing, returns all columns, so that the error for the first
// record can list them.
std::vector<int> leaves_of(const parquet::SchemaDescriptor& schema, const RecordMembers& members) {
  std::vector<std::string> wanted;
  for (const std::string& m : {members.text, members.prompt, members.completion, members.messages})
    if (!m.empty()) wanted.push_back(m);
  if (members.pairs()) wanted.insert(wanted.end(), {"prompt", "chosen", "rejected"});
  std::vector<int> leaves, all(static_cast<std::size_t>(schema.num_columns()));
  std::iota(all.begin(), all.end(), 0);
  const auto column = [&](int leaf) -> const std::string& { return schema.GetColumnRoot(leaf)->name(); };
  for (const std::string& m : wanted)
    if (std::ranges::none_of(all, [&](int leaf) { return names(m, column(leaf)); })) return all;
  if (members.conversation()) wanted.insert(wanted.end(), std::begin(kChatColumns), std::end(kChatColumns));
  if (members.masked())
    for (const chat::Mark& mark : chat::kMarks) wanted.emplace_back(mark.name);
  for (const int leaf : all)
    if (std::ranges::any_of(wanted, [&](const std::string& m) { return names(m, column(leaf)); }))
      leaves.push_back(leaf);
  return leaves.empty() ? all : leaves;
}

std::unique_ptr<parquet::arrow::FileReader> open_table(const std::string& path) {
  parquet::ReaderProperties pages;
  pages.enable_buffered_stream();
  pages.set_buffer_size(kReadAhead);
  pages.set_page_checksum_verification(true);  // applies only if the file has checksums
  parquet::ArrowReaderProperties rows;
  rows.set_batch_size(kRows);
  rows.set_pre_buffer(false);  // pre-buffering would hold whole row groups in memory
  parquet::arrow::FileReaderBuilder builder;
  check(builder.Open(checked(arrow::io::ReadableFile::Open(path), path), pages), path);
  return checked(builder.properties(rows)->Build(), path);
}

void take_rows(const arrow::RecordBatch& batch, const std::string& path, std::uint64_t before, const TakeRecord& take) {
  const arrow::Schema& schema = *batch.schema();
  for (std::int64_t row = 0; row < batch.num_rows(); ++row) {
    OrderedJson record = OrderedJson::object();
    for (int c = 0; c < batch.num_columns(); ++c) record[schema.field(c)->name()] = value_at(*batch.column(c), row);
    take(record, str(path, ": row ", before + static_cast<std::uint64_t>(row) + 1, ": "));
  }
}

}  // namespace

void require_parquet(const std::string&) {}

void read_parquet(const std::string& path, const RecordMembers& members, const TakeRecord& take) try {
  const auto table = open_table(path);
  std::vector<int> groups(static_cast<std::size_t>(table->num_row_groups()));
  std::iota(groups.begin(), groups.end(), 0);
  const std::vector<int> leaves = leaves_of(*table->parquet_reader()->metadata()->schema(), members);
  const auto batches = checked(table->GetRecordBatchReader(groups, leaves), path);
  std::uint64_t rows = 0;
  while (const auto batch = checked(batches->Next(), path)) {
    check(batch->Validate(), path);
    take_rows(*batch, path, rows, take);
    rows += static_cast<std::uint64_t>(batch->num_rows());
  }
} catch (const parquet::ParquetException& e) {
  check(arrow::Status::IOError(e.what()), path);
}

#endif

}  // namespace ring

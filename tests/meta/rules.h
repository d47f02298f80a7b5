#pragma once
// Rules about the source text. Each returns one line per violation: "file:line: what is wrong".

#include <string>
#include <vector>

#include "tests/meta/source_tree.h"

namespace ring::test {

using Violations = std::vector<std::string>;

// A room includes only itself and rooms to its left, by paths from the root, and includes no tests or benchmarks.
// Device vocabulary (kernels/cuda/device/) includes only itself and the host-and-device generator, and only CUDA
// folders include it.
Violations include_direction(const SourceFile&);

// Headers of large libraries stay out of the rooms' headers: every includer would pay for them.
Violations heavy_includes(const SourceFile&);

// At most 600 lines per source file, and 60 per function; 80 for a kernel.
Violations length(const SourceFile&);
Violations function_length(const SourceFile&);

// At most 120 columns, of sources and of prose.
Violations width(const SourceFile&);

// The host waits for a device only in tests, benchmarks, checkpoints and core. Elsewhere the line says why it may:
// "// allowed host wait: REASON", one of log, checkpoint, shutdown, start, sampling, diagnosis, transport (a thread of
// comm's own).
Violations host_waits(const SourceFile&);

// Files are opened by open_regular() (core/regular_file.h): opening a pipe in place of a file would block, and reading
// a device would never end. A line that opens a file in another way says why it may: it names a system file ("/proc",
// "/sys", "/dev/null"), a directory (O_DIRECTORY) or a new file (O_EXCL, "wbx"), or ends with "// allowed open:
// REASON", one of checked (by check_regular()), system, own, output (that the user named).
Violations opened_files(const SourceFile&);

// Settings are converted to smaller integers by narrow<T>(), which checks that they fit.
Violations narrowed_settings(const SourceFile&);

// Callers learn about an object through virtual functions of its interface and never test for its class, also in tests.
Violations casts_by_class(const SourceFile&);

// Rooms other than model use the interface Model (model/model.h) and name no architecture. Tests may.
Violations named_architectures(const SourceFile&);

// JSON is parsed only by core/json.h, which bounds the work; tests may use nlohmann's parser.
Violations json_parsers(const SourceFile&);

// Only cli/command.cpp includes CLI11: its templates are slow to compile in every file that uses them.
Violations command_line_parsers(const SourceFile&);

// Threads are joined, except in files that say why not.
Violations detached_threads(const SourceFile&);

// Sources contain no marks of unfinished work, no paths of a person's machine, and no comment without a subject ("Of
// ...").
Violations leftovers(const SourceFile&);

// Comments in the rooms begin with a verb or with the thing, not with a relative pronoun or a conjunction ("What the
// ranks hold"), and limits are called min and max.
Violations hard_words(const SourceFile&);

}  // namespace ring::test

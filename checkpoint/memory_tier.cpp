#include "checkpoint/memory_tier.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <set>
#include <sstream>

#include "checkpoint/files.h"
#include "checkpoint/reader.h"
#include "comm/host.h"
#include "core/log.h"
#include "core/page_lock.h"
#include "core/storage.h"
#include "job/worker_status.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMagic = 0x324B504D52;  // "RMPK2"
constexpr std::uint64_t kDataBegin = 4096;
constexpr const char* kFolder = "/proc/self/fd";

// Stored at the start of a slot. The text consists of a line with the identity, a line with the signature, and the
// manifest, which ends with its hash.
struct Header {
  // text_bytes is 0 if the slot holds no valid snapshot.
  std::uint64_t magic = 0, text_begin = 0, text_bytes = 0;
};

fs::path path_of(int file) { return fs::path(kFolder) / std::to_string(file); }

void write_header(int file, const Header& header) {
  File(path_of(file), File::Mode::update).write_at(0, &header, sizeof header);
}

// Writes through the mapping, whose pages are already allocated, since a write to the file could fail. If the process
// is killed meanwhile, readers find either a complete header or an invalid one.
void set_header(const std::shared_ptr<void>& map, const Header& header) {
  auto* const there = static_cast<Header*>(map.get());
  const std::atomic_ref magic(there->magic);
  magic.store(0);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  there->text_begin = header.text_begin;
  there->text_bytes = header.text_bytes;
  magic.store(header.magic);
}

std::string read_slot_text(int file) {
  const File f(path_of(file), File::Mode::read);
  Header h;
  const std::uint64_t size = f.size();
  if (size < kDataBegin) return "";
  f.read_at(0, &h, sizeof h);
  if (h.magic != kMagic || h.text_bytes > kMaxText || h.text_begin > size || h.text_bytes > size - h.text_begin)
    return "";
  std::string text(h.text_bytes, '\0');
  f.read_at(h.text_begin, text.data(), text.size());
  return text;
}

std::shared_ptr<void> map_file(int file, std::uint64_t bytes) {
  void* const begin = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
  if (begin == MAP_FAILED) fail("cannot reserve ", bytes_text(bytes), " of address space: ", std::strerror(errno));
  return {begin, [bytes](void* p) { munmap(p, bytes); }};
}

SavedTensor saved(const StateTensor& t, const std::byte* file_begin, const std::string& file) {
  SavedSlice slice{{t.start, t.local.shape()}, file, 0, t.local.bytes(), {}};
  Hasher hasher;
  if (slice.bytes > 0) slice.offset = static_cast<std::uint64_t>(t.local.raw() - file_begin);
  if (slice.bytes > 0) hasher.update(t.local.raw(), slice.bytes);
  slice.xxh3 = hasher.hex();
  return {t.local.dtype(), t.global_shape, {slice}};
}

// Hashes the tensors in place, through a mapping: reading them into a buffer would need the same memory again.
void check_hashes(int file, const Manifest& m) {
  const std::uint64_t size = File(path_of(file), File::Mode::read).size();
  const auto map = map_file(file, size);
  for (const auto& [name, t] : m.tensors) {
    const SavedSlice& s = t.slices.at(0);
    if (s.offset > size || s.bytes > size - s.offset) fail("tensor '", name, "' is truncated");
    Hasher hasher;
    hasher.update(static_cast<const std::byte*>(map.get()) + s.offset, s.bytes);
    if (hasher.hex() != s.xxh3) fail("the bytes of tensor '", name, "' do not match their hash");
  }
}

void warn_of_damage(const Error& e) {
  log::warn("a snapshot that the launcher keeps in memory is damaged and is not used: ", e.what());
}

void check_regions(const Manifest& m, const State& state) {
  for (const auto& [name, t] : state.tensors()) {
    const auto kept = m.tensors.find(name);
    if (kept != m.tensors.end() && !(kept->second.slices.at(0).region == Region{t.start, t.local.shape()}))
      fail("the launcher keeps a part of '", name, "' that differs from this rank's part");
  }
}

}  // namespace

MemoryTier::MemoryTier(const AgentMemoryFiles& files, std::string identity, std::string signing_key)
    : identity_(std::move(identity)), key_(std::move(signing_key)) {
  for (std::size_t i = 0; i < slots_.size(); ++i) slots_[i].file = files[i];
}

// Returns the slot's manifest if it has this identity and a valid signature; the tensors may still be damaged.
std::optional<Manifest> MemoryTier::read(const Slot& slot) const try {
  const std::string text = read_slot_text(slot.file);
  if (!text.starts_with(identity_ + "\n")) return std::nullopt;
  const std::size_t begin = identity_.size() + 1, end = text.find('\n', begin);
  const std::string manifest = end == text.npos ? "" : text.substr(end + 1);
  if (end == text.npos || !same_secret(text.substr(begin, end - begin), signature(manifest)))
    fail("its manifest is not signed by a worker of this job");
  Manifest m = parse_manifest(manifest, Cover::part);
  const std::string name = std::to_string(slot.file);
  for (SavedFile& f : m.files) f.name = name, f.bytes = File(path_of(slot.file), File::Mode::read).size();
  for (auto& [tensor, t] : m.tensors)
    for (SavedSlice& s : t.slices) s.file = name;
  return m;
} catch (const Error& e) {
  return warn_of_damage(e), std::nullopt;
}

std::vector<std::int64_t> MemoryTier::complete_steps() const {
  std::vector<std::int64_t> steps;
  for (const Slot& slot : slots_) try {
      const std::optional<Manifest> m = read(slot);
      if (m) check_hashes(slot.file, *m);
      if (m) steps.push_back(m->step);
    } catch (const Error& e) {
      warn_of_damage(e);
    }
  std::ranges::sort(steps);
  return steps;
}

Manifest MemoryTier::load(std::int64_t step, State& state, const Stream& stream) {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const std::optional<Manifest> m = read(slots_[i]);  // does not check the tensors' hashes: fill_state() does
    if (!m || m->step != step) continue;
    check_regions(*m, state);
    fill_state(kFolder, *m, state, stream);
    latest_ = static_cast<int>(i);
    loaded_from_ = fs::last_write_time(path_of(slots_[i].file));
    return *m;
  }
  fail("the launcher no longer keeps a snapshot of step ", step, " in memory");
}

void MemoryTier::allocate(Slot& slot, std::uint64_t bytes, Device device) {
  File file(path_of(slot.file), File::Mode::update);
  const bool of_ours = read_slot_text(slot.file).starts_with(identity_ + "\n");
  if (!of_ours || file.size() < kDataBegin + bytes) file.resize(0);
  file.reserve(kDataBegin + bytes);
  slot.map = with_locked_pages(map_file(slot.file, kDataBegin + bytes), kDataBegin + bytes, device);
  // Keeps the mapping alive. The room gets a use count of its own, which counts only the snapshots in this slot.
  const auto nothing = [map = slot.map](void*) {};
  slot.room = {std::shared_ptr<void>(static_cast<std::byte*>(slot.map.get()) + kDataBegin, nothing), bytes};
}

void MemoryTier::reserve(const State& state, const Stream& stream) {
  for (Slot& slot : slots_) allocate(slot, state.snapshot_bytes(), stream.device());
}

void MemoryTier::keep(std::int64_t step) {
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (const std::optional<Manifest> m = read(slots_[i]); m && m->step == step) latest_ = static_cast<int>(i);
}

void MemoryTier::clear() {
  for (Slot& slot : slots_) {
    slot.room = {};
    slot.map.reset();
    File(path_of(slot.file), File::Mode::update).resize(0);
  }
}

std::uint64_t MemoryTier::bytes() const {
  std::uint64_t total = 0;
  for (const Slot& slot : slots_) {
    struct stat facts {};
    if (fstat(slot.file, &facts) == 0) total += static_cast<std::uint64_t>(facts.st_blocks) * 512;
  }
  return total;
}

Snapshot MemoryTier::take_snapshot(const State& state, const Stream& stream) {
  if (1 - latest_ != held_) latest_ = 1 - latest_;
  Slot& slot = slots_[static_cast<std::size_t>(latest_)];
  set_header(slot.map, {});
  RING_CHECK(slot.room.memory.use_count() == 1 && slot.room.bytes >= state.snapshot_bytes(), "no room for a snapshot");
  return state.snapshot(stream, &slot.room);
}

void MemoryTier::seal(const Snapshot& snapshot, std::int64_t step, const std::string& metadata) {
  snapshot.wait();
  const Slot& slot = slots_[static_cast<std::size_t>(latest_)];
  const std::uint64_t end = kDataBegin + slot.room.bytes;
  Manifest m{.step = step, .metadata = metadata, .values = snapshot.values(), .files = {{"memory", end, ""}}};
  for (const auto& [name, t] : snapshot.tensors())
    m.tensors.emplace(name, saved(t, static_cast<std::byte*>(slot.map.get()), "memory"));
  const std::string manifest = to_text(m), text = identity_ + "\n" + signature(manifest) + "\n" + manifest;
  File(path_of(slot.file), File::Mode::update).write_at(end, text.data(), text.size());
  set_header(slot.map, {kMagic, end, text.size()});
}

void MemoryTier::invalidate() {
  for (const Slot& slot : slots_)
    if (slot.map)
      set_header(slot.map, {});
    else if (File(path_of(slot.file), File::Mode::read).size() > 0)
      write_header(slot.file, {});
}

std::unique_ptr<MemoryTier> open_memory_tier(const std::vector<std::string>& identity_facts) {
  const std::optional<AgentMemoryFiles> files = agent_memory_files();
  if (!files) return nullptr;
  std::string all;
  for (const std::string& fact : identity_facts) all += str(fact.size(), " ", fact);
  return std::make_unique<MemoryTier>(*files, hash_of(all), own_status().kept_key.data());
}

bool reserve_on_all_ranks(MemoryTier& tier, const State& state, const Stream& stream, Communicator& host) {
  std::string problem;
  try {
    tier.reserve(state, stream);
  } catch (const Error& e) {
    problem = str("-", e.what());
  }
  const std::vector<std::string> all = gather_host(host, problem);
  const auto bad = std::ranges::find_if(all, [](const std::string& text) { return !text.empty(); });
  if (bad == all.end()) return true;
  if (host.rank() == 0)
    log::warn("checkpoint.memory_interval: no snapshots are kept in memory, because rank ", bad - all.begin(),
              " has no room for two copies of its state, ", bytes_text(2 * state.snapshot_bytes()), ": ",
              bad->substr(1), ". Shard the states with parallel.zero, or use a machine with more memory");
  tier.clear();
  return false;
}

std::optional<std::int64_t> newest_common_step(const MemoryTier* tier, Communicator& host) {
  std::string own;
  if (tier)
    for (const std::int64_t step : tier->complete_steps()) own += str(step, " ");
  std::map<std::int64_t, int> holders;
  for (const std::string& text : gather_host(host, own)) {
    std::istringstream words(text);
    std::set<std::int64_t> steps;
    for (std::int64_t step; words >> step;) steps.insert(step);
    for (const std::int64_t step : steps) ++holders[step];
  }
  for (auto it = holders.rbegin(); it != holders.rend(); ++it)
    if (it->second == host.size()) return it->first;
  return std::nullopt;
}

}  // namespace ring

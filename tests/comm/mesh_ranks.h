#pragma once
// Runs a function on several ranks of a mesh. Nodes may be emulated (MeshLayout::emulate_nodes).

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "comm/mesh/mesh.h"
#include "job/store.h"

namespace ring::test {

// Calls fn(mesh) for each rank of the layout, in a thread of this process, and ends with a barrier. Returns the errors
// of all ranks, each prefixed with its rank; "" if there were none.
inline std::string run_mesh(const MeshLayout& layout, const std::function<void(Mesh&)>& fn,
                            const CommOptions& options = {}) {
  const int world = MeshAxes(layout.axes).size();
  const std::string cookie = random_cookie();
  const StoreServer server({"127.0.0.1", 0}, cookie);
  std::vector<std::string> errors(static_cast<std::size_t>(world));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      try {
        WorkerEnvironment env;
        env.rank = env.local_rank = rank;
        env.world = env.local_world = world;
        env.store = server.endpoint();
        env.cookie = cookie;
        const auto mesh = Mesh::join(env, options, layout);
        fn(*mesh);
        mesh->host().barrier().synchronize();
      } catch (const std::exception& e) {
        errors[static_cast<std::size_t>(rank)] = str("rank ", rank, ": ", e.what(), "\n");
      }
    });
  for (std::thread& t : threads) t.join();
  std::string all;
  for (const std::string& e : errors) all += e;
  return all;
}

}  // namespace ring::test

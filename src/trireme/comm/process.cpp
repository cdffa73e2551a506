#include "trireme/comm/process.h"

#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <thread>

#include "trireme/base/log.h"
#include "trireme/base/plugin.h"
#include "trireme/comm/mpi_plugin/mpi_plugin.h"

namespace trireme::comm {
namespace {

using namespace std::chrono_literals;

// How long a failed process stays, so that the others hear its last words before the launcher ends them all.
constexpr auto kLastWordsGrace = 300ms;

struct Meeting {
  char host[256] = {};
  int port = 0;
};

}  // namespace

ProcessRank::ProcessRank(const Launch& launch, const RanksOptions& options) {
  if (launch.kind == Launch::Kind::kTorchrun) {
    throw ConfigError("torchrun's variables are set, but processes can only talk over MPI in this build",
                      "start with 'mpirun -n N trireme ...', or unset RANK and WORLD_SIZE to use threads as ranks");
  }
  const Plugin plugin = Plugin::load("mpi");
  std::unique_ptr<Transport> transport(
      plugin.function<decltype(trireme_mpi_transport)>("trireme_mpi_transport")(options.ranks_per_node));
  auto* broadcast = plugin.function<decltype(trireme_mpi_broadcast)>("trireme_mpi_broadcast");

  if (transport->ranks() != launch.ranks) {
    throw ConfigError(fmt::format("the environment says that {} ranks were started, but MPI knows of {}", launch.ranks,
                                  transport->ranks()),
                      "start with 'mpirun -n N trireme ...'; or, for a run in one process, unset OMPI_COMM_WORLD_RANK "
                      "and OMPI_COMM_WORLD_SIZE (PMI_RANK, PMI_SIZE), which a shell or script has set");
  }

  TcpControlOptions control{.rank = transport->rank(), .ranks = transport->ranks()};
  Meeting meeting;
  if (control.rank == 0) {
    const std::vector<int> nodes = transport->node_of();
    const bool one_node = std::all_of(nodes.begin(), nodes.end(), [&](int node) { return node == nodes[0]; });
    if (!one_node) {
      if (gethostname(meeting.host, sizeof meeting.host - 1) != 0)
        throw IoError("this machine does not know its own name");
      control.host = "";  // listen on every address
    } else {
      std::strcpy(meeting.host, "127.0.0.1");
    }
    server_ = make_tcp_control_server(control);
    meeting.port = server_->port();
  }
  broadcast(transport.get(), &meeting, sizeof meeting);
  control.host = meeting.host;
  control.port = meeting.port;
  auto plane = connect_tcp_control(control);
  if (options.wrap) transport = options.wrap(std::move(transport));
  rank_ = std::make_unique<Rank>(std::move(transport), std::move(plane), options.comm);
}

ProcessRank::~ProcessRank() {
  rank_.reset();
  server_.reset();
}

void run_process_rank(const Launch& launch, const std::function<void(Rank&)>& body, const RanksOptions& options) {
  auto process = std::make_unique<ProcessRank>(launch, options);
  const ThreadRank in_log(process->rank().rank(), process->rank().ranks());
  std::string block;
  int status = 1;
  try {
    body(process->rank());
    process.reset();
    return;
  } catch (const ConfigError& error) {
    process->rank().announce_failure(error.message(), Notice::Kind::kRefused);
    block = error.block();
    status = 2;  // as the program ends for any input that is wrong: a supervisor does not try again
  } catch (const Error& error) {
    process->rank().announce_failure(error.message());
    block = error.block();
  } catch (const std::exception& error) {
    process->rank().announce_failure(error.what());
    block = fmt::format("error: {}\n", error.what());
  }
  // In one write: several ranks print at once.
  const std::string text = fmt::format("{}{}", rank_prefix(), block);
  std::fflush(stdout);
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) std::perror("stderr");
  std::this_thread::sleep_for(kLastWordsGrace);
  std::_Exit(status);
}

}  // namespace trireme::comm

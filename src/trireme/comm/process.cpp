#include "trireme/comm/process.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <thread>

#include "trireme/base/env.h"
#include "trireme/base/log.h"
#include "trireme/base/sha256.h"
#include "trireme/base/text.h"
#include "trireme/base/version.h"
#include "trireme/comm/mailbox.h"
#include "trireme/comm/mpi_plugin/mpi_plugin.h"
#include "trireme/comm/network_interfaces.h"
#include "trireme/comm/ucx_plugin/ucx_plugin.h"

namespace trireme::comm {
namespace {

using namespace std::chrono_literals;

// How long a failed process stays, so that the others hear its last words before the launcher ends them all.
constexpr auto kLastWordsGrace = 300ms;

/// Under which the control plane says what carries collectives, where that is MPI.
constexpr const char* kTransportKey = "trireme/transport";

/// Where rank 0 serves the control plane, as it goes over MPI.
struct Meeting {
  char host[256] = {};
  int port = 0;
  char token[64] = {};
};

std::string host_name() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0) throw IoError("this machine does not know its own name");
  return name;
}

bool takes_ucx(const Launch& launch, ProcessTransport asked) {
  if (asked != ProcessTransport::kAuto) return asked == ProcessTransport::kUcx;
  return launch.kind == Launch::Kind::kTorchrun || (launch.kind == Launch::Kind::kSlurm && !launch.pmix);
}

/// Ranks that run another program or another recipe would disagree sooner or later, with an error that is harder to
/// read. Throws ConfigError on the rank that differs from rank 0.
void compare_programs(ControlPlane& plane, const std::string& fingerprint, std::chrono::milliseconds timeout) {
  const std::string mine = fmt::format("{} {} {}", kVersion, fingerprint, host_name());
  if (plane.rank() == 0) {
    plane.set("trireme/program", mine);
    return;
  }
  const std::vector<std::string> first = split(plane.wait_for("trireme/program", timeout), ' ');
  TRIREME_CHECK(first.size() == 3, "rank 0 told \"{}\" of its program", fmt::join(first, " "));
  if (first[0] != kVersion) {
    throw ConfigError(fmt::format("rank {} on {} is Trireme {}, but rank 0 on {} is {}", plane.rank(), host_name(),
                                  kVersion, first[2], first[0]),
                      "install the same Trireme on all hosts");
  }
  if (first[1] != fingerprint) {
    throw ConfigError(fmt::format("rank {} on {} has another recipe (fingerprint {}) than rank 0 on {} ({})",
                                  plane.rank(), host_name(), fingerprint, first[2], first[1]),
                      "give all ranks the same file, the same --set options and the same TRIREME_ variables");
  }
}

}  // namespace

std::unique_ptr<Transport> ProcessRank::start_mpi(const Launch& launch, const RanksOptions& options) {
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
    const std::string host = one_node ? "127.0.0.1" : host_name();
    std::strncpy(meeting.host, host.c_str(), sizeof meeting.host - 1);
    // Drawn here and told over MPI: nobody has to make one.
    const std::string token = to_hex(random_bytes(sizeof meeting.token / 2 - 1));
    std::strncpy(meeting.token, token.c_str(), sizeof meeting.token - 1);
    control.host = one_node ? host : "";  // several: listen on every address
    control.token = token;
    server_ = make_tcp_control_server(control);
    meeting.port = server_->port();
  }
  broadcast(transport.get(), &meeting, sizeof meeting);
  control.host = meeting.host;
  control.port = meeting.port;
  control.token = meeting.token;
  plane_ = connect_tcp_control(control);
  if (control.rank == 0) plane_->set(kTransportKey, "mpi");
  compare_programs(*plane_, options.fingerprint, control.connect_timeout);
  return transport;
}

std::unique_ptr<Transport> ProcessRank::start_ucx(const Launch& launch, const RanksOptions& options,
                                                  const EpochMeeting* epoch) {
  if (launch.control_host.empty()) {
    throw ConfigError(fmt::format("UCX was asked for, but nothing says where the {} ranks meet", launch.ranks),
                      "start the ranks with torchrun or srun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; "
                      "under mpirun leave comm.transport out");
  }
  TcpControlOptions control{.rank = launch.rank,
                            .ranks = launch.ranks,
                            .host = launch.control_host,
                            .port = launch.control_port,
                            .token = control_token()};
  const bool one_host = launch.local_ranks == launch.ranks;
  if (one_host) control.host = "127.0.0.1";  // what nobody else needs to reach, nobody else shall
  if (!one_host && launch.local_ranks > 0 && control.token.empty()) {
    throw ConfigError(
        fmt::format("the {} ranks are on several hosts and meet at {}:{}, where anybody could join them: there is no "
                    "token",
                    launch.ranks, control.host, control.port),
        "set TRIREME_TOKEN_FILE for all ranks to a file that they share, made with 'umask 077; head -c 32 "
        "/dev/urandom | base64 >FILE'; or TRIREME_TOKEN to such a secret");
  }
  // What this host lacks is told before ranks meet: a rank 0 that came that far and failed would have closed the door
  // to those that come later.
  const ChosenInterfaces interfaces = choose_interfaces(options.interface);
  const Plugin plugin = load_ucx();
  const std::chrono::milliseconds meet_timeout = control.connect_timeout;
  if (epoch != nullptr) {
    control.job_id = epoch->job_id;
    control.token = epoch->token;
    control.connect_timeout = epoch->connect_timeout;
    control.called_off = epoch->called_off;
    control.heartbeat_timeout = epoch->heartbeat_timeout;
    control.heartbeat_every = std::min<std::chrono::milliseconds>(1s, epoch->heartbeat_timeout / 4);
    control.goodbye_timeout = 1s;
    control.absent_timeout = 0s;  // who comes late to an epoch that is over hears so from the coordinator
  }
  if (control.rank == 0) {
    server_ = make_tcp_control_server(control);
    control.port = server_->port();
    if (epoch != nullptr && epoch->listens) epoch->listens(control.port);
  }
  plane_ = connect_tcp_control(control);
  compare_programs(*plane_, options.fingerprint, control.connect_timeout);
  return std::unique_ptr<Transport>(plugin.function<decltype(trireme_ucx_transport)>("trireme_ucx_transport")(
      *plane_, {.ranks_per_node = options.ranks_per_node,
                .interfaces = interfaces,
                .meet_timeout = meet_timeout,
                .called_off = epoch != nullptr ? epoch->called_off : std::function<bool()>()}));
}

ProcessRank::ProcessRank(const Launch& launch, const RanksOptions& options, const EpochMeeting* epoch) {
  std::unique_ptr<Transport> transport;
  try {
    transport = epoch != nullptr || takes_ucx(launch, options.processes) ? start_ucx(launch, options, epoch)
                                                                         : start_mpi(launch, options);
  } catch (const Error& error) {
    // The others wait for this rank: they learn why it does not come.
    const bool refused = dynamic_cast<const ConfigError*>(&error) != nullptr;
    if (plane_) plane_->announce(refused ? Notice::Kind::kRefused : Notice::Kind::kFailed, error.message());
    throw;
  }
  if (options.wrap) transport = options.wrap(std::move(transport));
  rank_ = std::make_unique<Rank>(std::move(transport), std::move(plane_), options.comm);
}

ProcessRank::~ProcessRank() {
  rank_.reset();
  server_.reset();
}

Plugin load_ucx() {
  // It takes them when it is loaded, unless it is told before.
  if (!env("UCX_ERROR_SIGNALS")) set_env("UCX_ERROR_SIGNALS", "");
  try {
    return Plugin::load("ucx");
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("ranks without MPI talk over UCX: {}", error.message()),
                      "install libucx-dev, then configure and build again; or start the ranks with mpirun");
  }
}

std::unique_ptr<Mailbox> make_ucx_mailbox(ControlPlane& control, const UcxMailOptions& options) {
  const Plugin plugin = load_ucx();
  return std::unique_ptr<Mailbox>(
      plugin.function<decltype(trireme_ucx_mailbox)>("trireme_ucx_mailbox")(control, options));
}

std::unique_ptr<Mailbox> make_process_mailbox(ControlPlane& control, const UcxMailOptions& options) {
  if (control.get(kTransportKey) != "mpi") return make_ucx_mailbox(control, options);
  const MpiMailOptions mail{
      .address = options.address, .limits = options.limits, .deadline = options.deadline, .linger = options.linger};
  return std::unique_ptr<Mailbox>(
      Plugin::load("mpi").function<decltype(trireme_mpi_mailbox)>("trireme_mpi_mailbox")(control, mail));
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

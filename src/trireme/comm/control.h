// comm/control.h -- the control plane: a small key-value store beside the data path, with notices and questions.
//
// It works while the data path is stuck: every rank listens to it on a thread of its own (processes) or through shared
// memory (threads). Used for rendezvous, subgroup ids, "who has arrived where", and the last words of a dying rank.
// Two kinds: make_local_control() for ranks that are threads, connect_tcp_control() for ranks that are processes.
// Depends on: base.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace trireme::comm {

/// Something every rank must hear at once.
struct Notice {
  enum class Kind : std::uint8_t {
    kFailed,   ///< a rank's last words: it threw, or a call of its timed out; text is the reason
    kLost,     ///< a rank is gone without a word: its connection closed or its heartbeat stopped
    kLeft,     ///< a rank ended its work in good order
    kRefused,  ///< a rank's last words: what it was asked for is wrong (ConfigError); nothing broke
  };
  Kind kind;
  int rank;          // whom it is about
  std::string text;  // for people
};

/// The control plane is for small things; anything larger is refused and belongs on the data path.
inline constexpr std::size_t kMaxControlKeyBytes = 4 << 10, kMaxControlValueBytes = 16 << 20;

/// Any thread may call any of these. Destroying a plane resets its listener and announces kLeft, unless this rank has
/// announced kFailed or kLeft itself.
class ControlPlane {
 public:
  using Milliseconds = std::chrono::milliseconds;
  virtual ~ControlPlane() = default;

  virtual int rank() const = 0;
  virtual int ranks() const = 0;

  // These throw CommError when the plane is lost, or key or value is too large.
  virtual void set(const std::string& key, const std::string& value) = 0;
  virtual std::optional<std::string> get(const std::string& key) = 0;
  /// Blocks until the key exists; throws CommError naming the key when it does not within `timeout`, or when the plane
  /// is lost.
  std::string wait_for(const std::string& key, Milliseconds timeout) { return *wait_unless(key, timeout, {}); }
  /// The same, but nothing once `stop` says so, which is asked every few milliseconds; empty: it never does.
  virtual std::optional<std::string> wait_unless(const std::string& key, Milliseconds timeout,
                                                 const std::function<bool()>& stop) = 0;
  /// Adds to a counter (absent counts as 0) and returns the new value, atomically over all ranks. The value is a
  /// decimal number to get(); CommError when it is none.
  virtual std::int64_t add(const std::string& key, std::int64_t delta) = 0;
  virtual void erase(const std::string& key) = 0;

  /// Tells every other rank, those that come later included. Never throws: it is called while things fall apart. Ranks
  /// that are threads run each other's callbacks, here and in ask(): hold no lock that any rank's callback takes.
  virtual void announce(Notice::Kind kind, const std::string& text) noexcept = 0;
  /// Asks ranks a question; entry i is the answer of ranks[i], empty when it did not answer in time, has no listener,
  /// has left or does not exist. Never throws.
  virtual std::vector<std::optional<std::string>> ask(std::span<const int> ranks, const std::string& question,
                                                      Milliseconds timeout) noexcept = 0;

  /// Who listens on this rank. Both are called from another thread at any time and must be quick (over TCP, the
  /// heartbeat waits for them). Set before other ranks may ask, and reset (null) before what they capture dies: setting
  /// waits until a call in progress has returned, so hold no lock that a callback takes. Notices come one at a time and
  /// in order, each once; a new listener first hears all earlier ones, before this returns. Callbacks may use the
  /// plane.
  virtual void listen(std::function<void(const Notice&)> on_notice,
                      std::function<std::string(const std::string&)> on_question) = 0;
};

/// The planes of `ranks` threads of this process, entry r for rank r. A plane may outlive the others.
std::vector<std::unique_ptr<ControlPlane>> make_local_control(int ranks);

/// The job this process belongs to: TRIREME_JOB_ID, else empty.
std::string control_job_id();

/// The job's secret: TRIREME_TOKEN, else what the file of TRIREME_TOKEN_FILE holds, else empty. Throws ConfigError when
/// the file is open to others or the token is too short to be one.
std::string control_token();

/// Processes over TCP. One of them (by convention rank 0) serves at host:port and takes part like the others.
struct TcpControlOptions {
  int rank = 0, ranks = 1;
  std::string host = "127.0.0.1";
  int port = 0;                           // of the server; 0, for the server itself: any free one, see port()
  std::string job_id = control_job_id();  // only ranks with the server's id are let in; never printed
  /// Only ranks that prove to know it are let in, and only a server that does is trusted. Empty: only processes of the
  /// server's user on the server's machine are let in.
  std::string token = {};
  std::chrono::milliseconds connect_timeout{60'000};
  std::function<bool()> called_off = {};  // while connecting: nobody is to be met there any more
  std::chrono::milliseconds heartbeat_every{1'000};
  std::chrono::milliseconds heartbeat_timeout{30'000};  // silent for so long: lost; also the deadline of set, get, ...
  std::chrono::milliseconds goodbye_timeout{5'000};     // how long an ending server waits for the ranks to leave
  // The same for ranks that have not come yet, when the serving rank has failed: they learn why at once.
  std::chrono::milliseconds absent_timeout{5'000};
};

/// The listening side, made before anyone can connect; lives as long as the job. Destroy it after this process's own
/// plane: it waits for the planes that are connected to leave.
class TcpControlServer {
 public:
  virtual ~TcpControlServer() = default;
  virtual int port() const = 0;
};
/// Throws CommError when it cannot listen there.
std::unique_ptr<TcpControlServer> make_tcp_control_server(const TcpControlOptions& options);
/// Tries until options.connect_timeout; throws CommError when the server is not reached, refuses this rank, or has been
/// called off. When the
/// server is lost later, the listener hears kLost about rank 0, and calls throw.
std::unique_ptr<ControlPlane> connect_tcp_control(const TcpControlOptions& options);

}  // namespace trireme::comm

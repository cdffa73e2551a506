// comm/ucx_plugin/ucx_context.h -- UCX's context and worker of this process, made ready for active messages.
//
// What transport and mailbox share: settings, the event descriptor to sleep on, the address that others reach it by.
// Whoever owns one brings its own lock, endpoints and matching.
// Depends on: UCX (ucp), network_interfaces.h.
#pragma once

#include <ucp/api/ucp.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "trireme/comm/network_interfaces.h"

namespace trireme::comm {

/// CommError with UCX's own words when `status` is none of success and "in progress".
void check_ucx(ucs_status_t status, const std::string& what);

/// Random bytes of a start, which only those learn who were let in to the control plane.
inline constexpr std::size_t kSessionBytes = 16;

/// Bytes that to_hex() wrote.
std::string bytes_of_hex(const std::string& hex);
class UcxContext {
 public:
  enum class Long : std::uint8_t {
    kRendezvous,  ///< a long message's data stays with the sender until it is fetched
    kEager,       ///< it comes along: nothing is under way that an end of the connection would leave behind
  };
  /// Without names, all interfaces that UCX finds. Messages of id 0 go to `on_message` with `receiver`, from within
  /// ucp_worker_progress().
  UcxContext(const ChosenInterfaces& interfaces, Long long_messages, ucp_am_recv_callback_t on_message, void* receiver);
  /// "1.13": ranks must have the same.
  static std::string version();

  ucp_worker_h worker() const { return worker_.get(); }
  int event_fd() const { return event_fd_; }
  const std::string& address() const { return address_; }
  /// Connections that were made since are kept from programs that this process starts.
  void keep_from_children();
  /// With peer error handling: `on_failure` is called with `peer` when the other side is gone.
  ucs_status_t connect(const std::string& address, ucp_err_handler_cb_t on_failure, void* peer, ucp_ep_h& endpoint);
  /// Begins to close it: by force, or after what was sent. Null: done already; otherwise a request.
  void* close(ucp_ep_h endpoint, bool by_force);
  /// Before the end, when all endpoints have been closed: until nothing is being connected or sent. UCX 1.13 ends the
  /// process when a worker is destroyed while an answer of its own, to somebody who has just connected, is on its way;
  /// where that is still so at `until`, the worker is left to the end of the process.
  void finish(std::chrono::steady_clock::time_point until);

 private:
  std::unique_ptr<ucp_context, void (*)(ucp_context_h)> context_{nullptr, ucp_cleanup};
  std::unique_ptr<ucp_worker, void (*)(ucp_worker_h)> worker_{nullptr, ucp_worker_destroy};
  int event_fd_ = -1;
  std::string address_;
  std::set<int> inherited_;  // descriptors that were open before UCX
};

inline constexpr unsigned kUcxMessageId = 0;

}  // namespace trireme::comm

#include "trireme/comm/ucx_plugin/ucx_context.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>

#include "trireme/base/env.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"

namespace trireme::comm {
namespace {

template <typename Body>
void each_descriptor(Body&& body) {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", none)) {
    body(std::atoi(entry.path().filename().c_str()));
  }
}

}  // namespace

void check_ucx(ucs_status_t status, const std::string& what) {
  if (status == UCS_OK || status == UCS_INPROGRESS) return;
  throw CommError(fmt::format("{}: UCX says \"{}\"", what, ucs_status_string(status)));
}

std::string bytes_of_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

std::string UcxContext::version() {
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  return fmt::format("{}.{}", major, minor);
}

UcxContext::UcxContext(const ChosenInterfaces& interfaces, Long long_messages, ucp_am_recv_callback_t on_message,
                       void* receiver) {
  each_descriptor([&](int fd) { inherited_.insert(fd); });
  // One after the other: UCX reads the environment, which must not change meanwhile.
  static std::mutex environment;
  std::unique_lock one_at_a_time(environment);
  // A segment of a collective in one call of the kernel instead of four: a fifth of the processor time of long
  // messages. A key of UCX's TCP transport, which only the environment reaches.
  if (!env("UCX_TCP_RX_SEG_SIZE")) set_env("UCX_TCP_RX_SEG_SIZE", "320k");
  // Another one: a connection that is refused at once leaves its descriptor open in UCX 1.13, and one that nobody
  // answers would hold up everything else for minutes. Begun like this, neither is decided within the call.
  if (!env("UCX_TCP_CONN_NB")) set_env("UCX_TCP_CONN_NB", "y");
  // Another one; the order is the preference.
  if (interfaces.ipv6 && !env("UCX_TCP_AF_PRIO")) set_env("UCX_TCP_AF_PRIO", "inet6,inet");
  // TRIREME_UCX_... beats UCX_..., which a UCX below MPI would read too.
  ucp_config_t* config = nullptr;
  check_ucx(ucp_config_read("TRIREME", nullptr, &config), "reading UCX's settings");
  if (!interfaces.names.empty()) {
    const std::string names = fmt::format("{}", fmt::join(interfaces.names, ","));
    check_ucx(ucp_config_modify(config, "NET_DEVICES", names.c_str()), "choosing interfaces");
  }
  if (long_messages == Long::kEager)
    check_ucx(ucp_config_modify(config, "RNDV_THRESH", "inf"), "choosing eager messages");
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucp_context_h context = nullptr;
  const ucs_status_t started = ucp_init(&params, config, &context);
  ucp_config_release(config);
  one_at_a_time.unlock();
  check_ucx(started, "starting UCX");
  context_.reset(context);

  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // the owner's mutex
  ucp_worker_h made = nullptr;
  check_ucx(ucp_worker_create(context, &worker, &made), "making UCX's worker");
  worker_.reset(made);
  ucp_worker_attr_t attributes{};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_THREAD_MODE;
  check_ucx(ucp_worker_query(made, &attributes), "asking UCX's worker");
  if (attributes.thread_mode == UCS_THREAD_MODE_SINGLE) {
    throw CommError("this UCX was built without thread support, but a background thread pushes pending calls on",
                    "use a UCX that was configured with --enable-mt, as Debian's is");
  }
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kUcxMessageId;
  handler.cb = on_message;
  handler.arg = receiver;
  check_ucx(ucp_worker_set_am_recv_handler(made, &handler), "registering for messages");
  check_ucx(ucp_worker_get_efd(made, &event_fd_), "asking for UCX's event descriptor");

  ucp_address_t* address = nullptr;
  std::size_t length = 0;
  check_ucx(ucp_worker_get_address(made, &address, &length), "asking for the worker's address");
  address_.assign(reinterpret_cast<const char*>(address), length);
  ucp_worker_release_address(made, address);
}

// A child that a rank starts must not keep its connections open after the rank's death: UCX does not close its sockets
// on exec, so we say it for them when there may be new ones.
void UcxContext::keep_from_children() {
  each_descriptor([&](int fd) {
    if (inherited_.contains(fd)) return;
    if (const int flags = fcntl(fd, F_GETFD); flags >= 0 && (flags & FD_CLOEXEC) == 0)
      fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
  });
}

ucs_status_t UcxContext::connect(const std::string& address, ucp_err_handler_cb_t on_failure, void* peer,
                                 ucp_ep_h& endpoint) {
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = on_failure, .arg = peer};
  const ucs_status_t made = ucp_ep_create(worker_.get(), &params, &endpoint);
  if (made != UCS_OK) endpoint = nullptr;
  return made;
}

void* UcxContext::close(ucp_ep_h endpoint, bool by_force) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = by_force ? UCP_EP_CLOSE_FLAG_FORCE : 0;
  void* request = ucp_ep_close_nbx(endpoint, &param);
  return UCS_PTR_IS_PTR(request) ? request : nullptr;
}

void UcxContext::finish(std::chrono::steady_clock::time_point until) {
  const ucp_request_param_t none{};
  void* flush = ucp_worker_flush_nbx(worker_.get(), &none);
  bool flushed = !UCS_PTR_IS_PTR(flush);
  while (!flushed && std::chrono::steady_clock::now() < until) {
    ucp_worker_progress(worker_.get());
    flushed = ucp_request_check_status(flush) != UCS_INPROGRESS;
  }
  if (flushed && UCS_PTR_IS_PTR(flush)) ucp_request_free(flush);
  if (flushed) return;
  log_debug("UCX: somebody was still connecting; its worker is left to the end of the process");
  [[maybe_unused]] ucp_worker_h worker = worker_.release();
  [[maybe_unused]] ucp_context_h context = context_.release();
}

}  // namespace trireme::comm

#include "trireme/train/servers/server_nodes.h"

#include <ATen/Parallel.h>

#include "trireme/ps/node.h"

namespace trireme::train {

ServerNodes::ServerNodes(comm::Group& world, const ServerNodesOptions& options)
    : options_(options), mailboxes_(world, 1 + options.servers + world.size(), options.interface, options.deadline) {
  const int first_worker = 1 + options.servers;
  mailbox_ = mailboxes_.open(first_worker + world.rank());
  if (world.rank() == 0) {
    ps::ManagerOptions nodes{.address = 0, .copies = options.copies};
    for (int i = 0; i < options.servers; ++i) nodes.servers.push_back(1 + i);
    for (int i = 0; i < world.size(); ++i) nodes.workers.push_back(first_worker + i);
    mailboxes_.start(0, [nodes](comm::Mailbox& mailbox) {
      ps::Manager manager(nodes);
      ps::manage(mailbox, manager);
    });
  }
  for (int number = world.rank(); number < options.servers; number += world.size()) {
    server_mailboxes_.push_back(mailboxes_.start(1 + number, [this](comm::Mailbox& mailbox) {
      at::set_num_threads(1);
      ps::Server server({.address = mailbox.address(), .keys = options_.keys, .type = options_.type}, options_.rule());
      ps::serve(mailbox, server, 0);
    }));
  }
}

std::optional<QueueReading> ServerNodes::server_mail() const {
  if (server_mailboxes_.empty()) return std::nullopt;
  QueueReading all;
  for (const auto& mailbox : server_mailboxes_) all += mailbox->queue();
  return all;
}

}  // namespace trireme::train

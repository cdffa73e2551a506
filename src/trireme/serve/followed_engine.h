// serve/followed_engine.h -- one rank's engine is asked for continuations, and those of the ranks that hold the model
// with it do the same.
//
// Schedulers are plain values: ranks that are told the same requests and cancellations between the same steps plan the
// same steps and draw the same tokens. So what goes over the wire is what rank 0 was asked, before each step, and never
// a tensor. While nothing is to be done a short message keeps the others from giving it up.
// Depends on: comm, engine.h.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/serve/engine.h"

namespace trireme::serve {

/// What an engine is told between two steps. It then takes one, if it has requests.
struct EngineOrders {
  std::vector<EngineRequest> requests = {};
  std::vector<RequestId> cancels = {};
  bool end = false;
};
/// Without callbacks.
std::string to_text(const EngineOrders& orders);
EngineOrders orders_of(const std::string& text);

/// Rank 0.
void tell_followers(comm::Group& world, const EngineOrders& orders);
/// The others, until they are told that it is over.
void follow(InferenceEngine& engine, comm::Group& world);

}  // namespace trireme::serve

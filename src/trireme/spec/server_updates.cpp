#include "trireme/spec/server_updates.h"

namespace trireme::spec {

bool servers_update_by(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kSgd:
    case OptimizerKind::kAdagrad:
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamw:
    case OptimizerKind::kLion:
      return true;
    case OptimizerKind::kLamb:  // norms of whole tensors
    case OptimizerKind::kLars:
    case OptimizerKind::kScheduleFree:  // an average beside the weights
    case OptimizerKind::kMuon:          // whole matrices
    case OptimizerKind::kAdafactor:
    case OptimizerKind::kShampoo:
    case OptimizerKind::kSoap:
      break;
  }
  return false;
}

int server_planes(const OptimConfig& optim) {
  switch (optim.kind) {
    case OptimizerKind::kSgd:
      return optim.momentum > 0 ? 2 : 1;
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamw:
      return 4;  // both moments, and how many pushes it had
    default:
      return 2;
  }
}

}  // namespace trireme::spec

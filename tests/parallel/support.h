// A few parameters on each of several ranks, with gradients that a test gives them.
#pragma once

#include <ATen/ops/full.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/rank.h"
#include "trireme/layout/placing.h"
#include "trireme/parallel/data_parallel.h"

namespace trireme::parallel {

/// Four vectors of 100 numbers on each of `ranks` ranks, in units of one.
struct Copies {
  nn::Params params;
  std::unique_ptr<MeshGroups> groups;
  std::unique_ptr<DataParallel> data_parallel;

  Copies(comm::Rank& rank, DataParallelOptions options, const std::vector<std::string>& frozen = {}) {
    groups = std::make_unique<MeshGroups>(rank.world(), layout::Mesh({{"dp", rank.ranks()}}));
    std::vector<ShardUnit> units;
    for (const char* name : {"a", "b", "c", "d"}) {
      const layout::Placing placing(groups->mesh(), rank.rank(), name, {100});
      nn::Param& param = params.add(placing.placement(), {.kind = nn::Init::Kind::kNormal, .scale = 1}, true);
      param.uses = 1;
      param.trainable = std::ranges::find(frozen, param.name) == frozen.end();
      units.push_back({.params = {&param}});
    }
    if (rank.ranks() > 1) options.data = {"dp"};
    if (options.zero > 0 && options.shard.empty()) options.shard = options.data;
    data_parallel = std::make_unique<DataParallel>(std::move(units), params, *groups, options);
    nn::initialise(data_parallel->owned(), options.precision, 1);
    data_parallel->updated();
    data_parallel->wait_for_weights();
  }

  void add(const std::string& name, double number) {
    nn::Param& param = params.at(name);
    nn::add_gradient(param, at::full({100}, number));
    data_parallel->added(param);
  }
  /// Backward of a micro: the last parameter first.
  void micro(bool last, double number) {
    data_parallel->begin_micro(last);
    for (const char* name : {"d", "c", "b", "a"}) add(name, number);
  }
  comm::Group& group() { return *groups->along({"dp"}); }
};

}  // namespace trireme::parallel

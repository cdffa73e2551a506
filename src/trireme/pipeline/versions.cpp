#include "trireme/pipeline/versions.h"

#include <ATen/ops/empty_like.h>

#include <utility>

#include "trireme/base/error.h"
#include "trireme/pipeline/scale_versions.h"
#include "trireme/pipeline/waves.h"

namespace trireme::pipeline {

using schedule::Op;

WeightVersions::WeightVersions(const schedule::Schedule& table, std::span<const Chunk> chunks,
                               WeightPredictor* predictor, parallel::DataParallel* data_parallel)
    : table_(table),
      predictor_(predictor),
      data_parallel_(data_parallel),
      sharded_(data_parallel != nullptr && data_parallel->shards_versions()) {
  for (const Chunk& chunk : chunks) {
    Held& held = held_[chunk.number];
    held.chunk = &chunk;
    held.gathered = sharded_;
    for (std::size_t i = 0; i < chunk.params.size(); ++i) held.index[chunk.params[i]] = i;
  }
}

const at::Tensor& WeightVersions::Held::value(const nn::Param& param) {
  const auto found = index.find(&param);
  TRIREME_CHECK(found != index.end(), "chunk {} computes with {}, which is not among its parameters", chunk->number,
                param.name);
  return gathered || now == nullptr ? param.value : (*now)[found->second];
}

WeightVersions::Held& WeightVersions::held(int chunk) {
  const auto found = held_.find(chunk);
  TRIREME_CHECK(found != held_.end(), "chunk {} is not on this rank", chunk);
  return found->second;
}

WeightVersions::Copy WeightVersions::present(const Held& held) const {
  if (sharded_) return data_parallel_->version_parts(held.chunk->number);
  Copy values;
  for (const nn::Param* param : held.chunk->params) values.push_back(param->value);
  return values;
}

WeightVersions::Copy WeightVersions::copy_of(Held& held) {
  if (!held.unused.empty()) {
    Copy copy = std::move(held.unused.back());
    held.unused.pop_back();
    return copy;
  }
  Copy copy;
  for (const at::Tensor& tensor : present(held)) copy.push_back(at::empty_like(tensor));
  return copy;
}

/// With ZeRO each rank predicts the part that it updates, and all gather the rest: at once, with ZeRO 3 as layers run.
void WeightVersions::predict(const Held& held, int updates, Copy& copy) {
  const auto& params = held.chunk->params;
  if (data_parallel_ == nullptr || !data_parallel_->has_separate_shards()) {
    for (std::size_t i = 0; i < params.size(); ++i) copy[i].copy_(predictor_->after(*params[i], updates));
    return;
  }
  const auto make = [&](const nn::Param& owned) { return predictor_->after(owned, updates); };
  if (sharded_) return data_parallel_->make_version(held.chunk->number, make, copy);
  data_parallel_->gather_made(held.chunk->number, make, [&](const nn::Param& param, const at::Tensor& whole) {
    copy[held.index.at(&param)].copy_(whole);
  });
}

void WeightVersions::begin() {
  updates_ = 0;
  if (scales_ != nullptr) scales_->begin();
  for (auto& [chunk, held] : held_) {
    TRIREME_CHECK(held.stashed.empty(), "chunk {} still holds version {}", chunk, held.stashed.begin()->first);
    held.next = nullptr;
    for (auto& prediction : held.predicted) {
      if (prediction.version >= 0) held.unused.push_back(std::move(prediction.copy));
      prediction = {};
    }
  }
}

void WeightVersions::updated() {
  if (scales_ != nullptr) scales_->updated(updates_);
  ++updates_;
}

void WeightVersions::rewind(int step) {
  if (scales_ != nullptr) scales_->rewind(step);
}

void WeightVersions::end() {
  if (scales_ != nullptr) scales_->end();
  if (!sharded_) return;
  for (const auto& [chunk, held] : held_) data_parallel_->use_version(chunk, nullptr);
}

void WeightVersions::execute(const schedule::Instruction& instruction, bool forward) {
  Held& mine = held(instruction.chunk);
  const int version = instruction.micro;
  auto& prediction = mine.predicted[forward ? 1 : 0];
  switch (instruction.op) {
    case Op::kStashWeights: {
      TRIREME_CHECK(version == updates_, "version {} is to be stashed while {} is present", version, updates_);
      Copy copy = copy_of(mine);
      const Copy values = present(mine);
      for (std::size_t i = 0; i < values.size(); ++i) copy[i].copy_(values[i]);
      TRIREME_CHECK(mine.stashed.emplace(version, std::move(copy)).second, "version {} is held already", version);
      return;
    }
    case Op::kDropWeights: {
      auto dropped = mine.stashed.extract(version);
      TRIREME_CHECK(!dropped.empty(), "version {} is not held", version);
      mine.unused.push_back(std::move(dropped.mapped()));
      return;
    }
    case Op::kPredictWeights:
      TRIREME_CHECK(predictor_ != nullptr, "there is no weight predictor");
      if (prediction.version < 0) prediction.copy = copy_of(mine);
      prediction.version = version;
      prediction.made_at = mine.next_made_at = updates_;
      predict(mine, version - updates_, prediction.copy);
      mine.next = &prediction.copy;
      return;
    case Op::kLoadWeights: {
      if (prediction.version == version) {
        mine.next = &prediction.copy;
        mine.next_made_at = prediction.made_at;
        return;
      }
      const auto found = mine.stashed.find(version);
      TRIREME_CHECK(found != mine.stashed.end(), "version {} is not held", version);
      mine.next = &found->second;
      mine.next_made_at = version;
      return;
    }
    default:
      TRIREME_CHECK(false, "{} is no version instruction", schedule::to_text(instruction, true));
  }
}

nn::WeightSource* WeightVersions::take(int chunk, int micro, bool keep) {
  if (waves_ != nullptr) return waves_->take(micro);
  Held& mine = held(chunk);
  if (sharded_) data_parallel_->use_version(chunk, mine.next);
  if (scales_ != nullptr) scales_->enter(mine.next != nullptr ? mine.next_made_at : updates_, table_.step_of(micro));
  // A quantised weight must not be kept from one step's passes for another's, whose scales may differ.
  const bool each_its_own = scales_ != nullptr && table_.weights != schedule::WeightChoice::kFlush;
  if (mine.next == nullptr && !each_its_own) return nullptr;
  mine.now = keep ? mine.next : std::exchange(mine.next, nullptr);
  return &mine;
}

int WeightVersions::Held::copies() const {
  return static_cast<int>(stashed.size()) + (predicted[0].version >= 0) + (predicted[1].version >= 0);
}

int WeightVersions::copies() const {
  int copies = 0;
  for (const auto& [chunk, held] : held_) copies += held.copies();
  return copies;
}

std::int64_t WeightVersions::bytes() const {
  std::int64_t bytes = 0;
  for (const auto& [chunk, held] : held_) {
    std::int64_t each = 0;
    for (const at::Tensor& tensor : present(held)) each += static_cast<std::int64_t>(tensor.nbytes());
    bytes += held.copies() * each;
  }
  return bytes;
}

}  // namespace trireme::pipeline

// nn/context.h -- what a step says to every layer: where the tokens stand, what is random, where losses go.
//
// Depends on: base, kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/events.h"
#include "trireme/nn/loss_terms.h"
#include "trireme/nn/param.h"

namespace trireme::device {
struct RankMemory;
}

namespace trireme::nn {

class ActivationArena;
class Stash;
class DropoutRngState;
struct KvBatch;
struct Distillation;

/// The tokens of a micro-batch, [batch, seq_len]. Of an inference step with a KV cache: those of all its sequences,
/// [1, tokens], which `Context::kv_batch` tells apart.
struct Sequence {
  at::Tensor positions;  ///< int64, each token's place in its document
  at::Tensor documents;  ///< int32, packed documents: equal numbers see each other; undefined: one a row
  /// int64 [seq_len], where ranks share each row's tokens: which columns of the row these are. `documents` then has
  /// whole rows, since tokens see those of other ranks. Undefined: 0, 1, ... On the host, wherever the others are.
  at::Tensor columns = {};
  std::int64_t row_length = 0;      ///< tokens of a whole row, with `columns`
  at::Tensor documents_here = {};   ///< `documents` on the host, where they are on a GPU; undefined: reading them waits
  std::int64_t position_count = 0;  ///< one above the largest position; 0: not known, which on a GPU costs a wait
};

/// Which version of the weights a layer computes with: stashed, predicted or gathered ones in place of the current.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual const at::Tensor& value(const Param& param) = 0;
};

/// Who runs a pass in parts. A mixture of experts whose rows travel between ranks tells it where another pass of this
/// rank could go on meanwhile; it returns when this one is to go on. Ranks that share experts have the same stops in
/// the same order.
class PassStops {
 public:
  enum class Before : std::uint8_t {
    kDispatch,  ///< rows are ready to be sent to their experts
    kExpert,    ///< they are on their way
    kCombine,   ///< what experts made of them is on its way back
  };
  virtual ~PassStops() = default;
  virtual void stop(Before next) = 0;
};

/// Who looks at what one micro-batch adds to gradients, whatever others have added. Experts' rows may come in several
/// passes, each of which adds.
class GradientWatch {
 public:
  virtual ~GradientWatch() = default;
  virtual void before(Param& param) = 0;  ///< this layer is about to add its part
  virtual void after(Param& param) = 0;   ///< it has
};

/// What multi-token prediction reads, one slice of the last dimension for each depth: multi_token.h.
struct MtpTokens {
  at::Tensor ids;      ///< int64 [batch, seq_len, depths]; undefined: no multi-token prediction in this pass
  at::Tensor targets;  ///< as large, -100: no loss
  at::Tensor weights;  ///< float, as large; undefined: 1
};

/// Of a forward pass over two micro-batches that go back one by one: rows of the first, of both; none: 0.
struct RowDivision {
  std::int64_t first = 0, rows = 0;
};

struct Context {
  bool training = false;   ///< dropout falls
  std::uint64_t seed = 0;  ///< of the run
  std::int64_t step = 0;
  at::Tensor samples;   ///< int64 [batch]: global numbers of the rows, for dropout
  bool filler = false;  ///< rows of another rank, run to keep step with it: they have no loss and count nowhere

  Sequence sequence;    ///< what the model reads, or its decoder
  Sequence source;      ///< what an encoder reads beside a decoder
  at::Tensor segments;  ///< int64 [batch, seq_len], BERT's token types; undefined: all zero

  at::Tensor targets;       ///< int64 [batch, seq_len], -100: no loss; undefined: the model gives logits
  at::Tensor loss_weights;  ///< float [batch, seq_len]: weight of each token's loss; undefined: 1
  /// The teacher whose probabilities the main loss learns beside the targets: distillation.h; null: none. Shared by the
  /// copies of a context.
  std::shared_ptr<const Distillation> distillation;
  double gradient_scale =
      1;  ///< 1 / (tokens of the whole batch), times the loss scale: gradients come out as of the mean
  at::Tensor scale_on_device;  ///< the same as a number on the GPU, float (double) [1], of a captured step; undefined:
                               ///< as given
  double sample_scale = 1;  ///< 1 / (samples of the whole batch), times the loss scale: of losses averaged over samples
  at::Tensor sample_scale_on_device;  ///< as scale_on_device
  DropoutRngState* dropout_rng =
      nullptr;  ///< where a captured step's dropout finds what differs from step to step; null: nowhere
  std::vector<LossTerm> losses;
  bool losses_later = false;               ///< the terms may be left pending: whoever set it calls settle()
  double flops = 0, recomputed_flops = 0;  ///< done so far in GEMMs: flops.h

  const KvBatch* kv_batch = nullptr;                  ///< inference over a KV cache: kv_cache.h
  WeightSource* weights = nullptr;                    ///< null: the current ones
  std::function<void(Param&)> on_gradient = nullptr;  ///< a layer has added its part to this gradient
  GradientWatch* watch = nullptr;                     ///< null: nobody looks
  bool divided =
      false;  ///< backward goes in parts of a forward: every tensor saved has its rows in its first dimension
  std::int64_t watched_rows =
      0;  ///< of a forward over two micro-batches those of the first, which `watch` looks at; 0: all
  RowDivision division = {};             ///< where it is `divided` into, during that forward
  PassStops* stops = nullptr;            ///< null: the pass runs through
  ActivationArena* arena = nullptr;      ///< where kept inputs lie until backward; null: where they were made
  Stash* stash = nullptr;                ///< where kept inputs wait for backward; null: on the device
  device::RankMemory* memory = nullptr;  ///< where activations are counted; null: nowhere
  EventSink* events = nullptr;           ///< who is told when each layer ran; null: nobody
  int rank = 0;                          ///< whose events they are
  MtpTokens mtp;

  const at::Tensor& value(const Param& param) const { return weights ? weights->value(param) : param.value; }
  void added(Param& param) {
    if (on_gradient && param.trainable) on_gradient(param);
  }
  void begin_adding(Param& param) const {
    if (watch != nullptr && param.trainable) watch->before(param);
  }
  void end_adding(Param& param) const {
    if (watch != nullptr && param.trainable) watch->after(param);
  }
};

/// Which of the context's sequences a layer works on.
enum class Stream : std::uint8_t { kSequence, kSource };
inline const Sequence& sequence_of(const Context& context, Stream stream) {
  return stream == Stream::kSource ? context.source : context.sequence;
}

inline at::Tensor documents_on_host(const Sequence& sequence) {
  if (sequence.documents_here.defined() || !sequence.documents.defined()) return sequence.documents_here;
  return sequence.documents.cpu();  // the same tensor where it is there
}

/// Positions 0, 1, ... and no documents, for tokens [batch, length].
Sequence plain_sequence(std::int64_t batch, std::int64_t length);

}  // namespace trireme::nn

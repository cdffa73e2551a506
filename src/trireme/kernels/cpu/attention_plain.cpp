#include "trireme/kernels/cpu/attention_body.h"

namespace trireme::kernels::cpu {

constinit const AttentionBodies kAttentionPlain = {{body_of<Single<float, float>>(), body_of<Single<double, double>>(),
                                                    body_of<Single<Half, float>>(),
                                                    body_of<Single<Bfloat16, float>>()}};

}  // namespace trireme::kernels::cpu

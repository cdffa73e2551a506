#include "trireme/kernels/cpu/attention_body.h"

namespace trireme::kernels::cpu {

#if defined(__x86_64__)
static_assert(kVectorBytes == 64, "the build forgot this file's instruction set");
#endif

constinit const AttentionBodies kAttentionV4 = {{body_of<Single<float, float>>(), body_of<Single<double, double>>(),
                                                 body_of<Single<Half, float>>(), body_of<Single<Bfloat16, float>>()}};

}  // namespace trireme::kernels::cpu

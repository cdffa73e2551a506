#define TRIREME_ACTIVATION_TABLE kActivationV4Bf16
#include "trireme/kernels/cpu/activation_body.h"

#define TRIREME_ACTIVATION_TABLE kActivationV3
#include "trireme/kernels/cpu/activation_body.h"

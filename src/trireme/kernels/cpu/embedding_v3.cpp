#define TRIREME_EMBEDDING_TABLE kEmbeddingV3
#include "trireme/kernels/cpu/embedding_body.h"

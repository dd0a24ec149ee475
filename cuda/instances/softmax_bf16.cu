#include "softmax.inl"

template int rowwise::launch_softmax<rowwise::bf16>(const rw_softmax_params&, void*, bool);

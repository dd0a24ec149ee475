#include "loss.inl"

template int rowwise::launch_loss<rowwise::bf16>(const rw_loss_params&, void*, bool);

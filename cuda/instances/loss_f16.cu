#include "loss.inl"

template int rowwise::launch_loss<rowwise::f16>(const rw_loss_params&, void*, bool);

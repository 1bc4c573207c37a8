from millrace.contrib.celery import shared_task
from shop.models import Order


@shared_task(autoretry_for=(Exception,), retry_backoff=True, max_retries=9)
def send_receipt(order_id: int) -> str:
    order = Order.objects.get(pk=order_id)
    order.receipt = f"Thank you for the {order.product}."
    order.save(update_fields=["receipt"])
    return order.receipt

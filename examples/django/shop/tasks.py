from millrace.contrib.django import options
from shop.models import Order

try:
    from django.tasks import task
except ImportError:  # before Django 6
    from django_tasks import task


@task()
@options(max_attempts=10, timeout="30s")
def send_receipt(order_id: int) -> str:
    order = Order.objects.get(pk=order_id)
    order.receipt = f"Thank you for the {order.product}."
    order.save(update_fields=["receipt"])
    return order.receipt
